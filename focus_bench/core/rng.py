"""Random numbers as pure functions of their keys: counter-based hashes and named generators.

Every draw is a function of (seed, stream name, counters), so the engine, the simulator and a batch
of any composition draw the same numbers for the same request, step and position.
"""

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_11, _SHIFT_27, _SHIFT_30, _SHIFT_31 = (np.uint64(bits) for bits in (11, 27, 30, 31))


@lru_cache(maxsize=256)
def stream_key(seed: int, name: str) -> int:
    """64-bit key of the named stream of `seed` (stable across Python processes and platforms)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, name: str) -> np.random.Generator:
    """A numpy generator for the named stream, for bulk draws outside the step loop."""
    return np.random.default_rng(stream_key(seed, name))


# Drawing noise is the simulator's longest loop: what follows works in place where it can.


def _mix(x: UInt64Array) -> UInt64Array:
    # The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche. Of
    # numbers that nobody else holds.
    x ^= x >> _SHIFT_30
    x *= _MIX_1
    x ^= x >> _SHIFT_27
    x *= _MIX_2
    x ^= x >> _SHIFT_31
    return x


def hash_u64(key: int | UInt64Array, *counters: npt.ArrayLike) -> UInt64Array:
    """Hash broadcast integer counters under a 64-bit stream key; the shape is their broadcast.

    Counters are taken in one after the other, so `key` may be an array of hashes to go on from:
    hash_u64(hash_u64(key, a), b) is hash_u64(key, a, b).
    """
    x: UInt64Array = np.asarray(key, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            c = np.asarray(counter).astype(np.uint64)
            c *= _MIX_1
            c += _GOLDEN
            x = _mix((x + _GOLDEN) ^ c)
    return x


def uniform(key: int | UInt64Array, *counters: npt.ArrayLike) -> FloatArray:
    """Uniform floats in [0, 1) with 53 random bits, shaped as the counters' broadcast."""
    floats: FloatArray = np.asarray(hash_u64(key, *counters) >> _SHIFT_11).astype(np.float64)
    floats *= 2.0**-53
    return floats


def gumbel(key: int, *counters: npt.ArrayLike) -> FloatArray:
    """Standard Gumbel noise, shaped as the counters' broadcast; always finite."""
    u = uniform(key, *counters) + 2.0**-54
    return np.asarray(-np.log(-np.log(u)))


def normal(key: int | UInt64Array, *counters: npt.ArrayLike) -> FloatArray:
    """Standard normal noise (Box and Muller 1958), shaped as the counters' broadcast."""
    shared = hash_u64(key, *counters)
    which = np.arange(2, dtype=np.uint64).reshape(2, *(1,) * shared.ndim)
    drawn = uniform(shared, which)
    radius, angle = drawn[:1], drawn[1:]
    radius += 2.0**-54
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle *= 2.0 * np.pi
    np.cos(angle, out=angle)
    angle *= radius
    return np.asarray(angle[0])
