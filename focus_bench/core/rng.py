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


@lru_cache(maxsize=256)
def stream_key(seed: int, name: str) -> int:
    """64-bit key of the named stream of `seed` (stable across Python processes and platforms)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, name: str) -> np.random.Generator:
    """A numpy generator for the named stream, for bulk draws outside the step loop."""
    return np.random.default_rng(stream_key(seed, name))


def _mix(x: UInt64Array) -> UInt64Array:
    # The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche.
    # Of its own copy of the numbers, in place: drawing noise is the simulator's longest loop.
    x = x ^ (x >> np.uint64(30))
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
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
            x = _mix((x + _GOLDEN) ^ (c * _MIX_1 + _GOLDEN))
    return x


def uniform(key: int | UInt64Array, *counters: npt.ArrayLike) -> FloatArray:
    """Uniform floats in [0, 1) with 53 random bits, shaped as the counters' broadcast."""
    bits = hash_u64(key, *counters) >> np.uint64(11)
    return np.asarray(bits.astype(np.float64) * 2.0**-53)


def gumbel(key: int, *counters: npt.ArrayLike) -> FloatArray:
    """Standard Gumbel noise, shaped as the counters' broadcast; always finite."""
    u = uniform(key, *counters) + 2.0**-54
    return np.asarray(-np.log(-np.log(u)))


def normal(key: int | UInt64Array, *counters: npt.ArrayLike) -> FloatArray:
    """Standard normal noise (Box and Muller 1958), shaped as the counters' broadcast."""
    shared = hash_u64(key, *counters)
    which = np.arange(2, dtype=np.uint64).reshape(2, *(1,) * shared.ndim)
    first, second = uniform(shared, which)
    radius = np.sqrt(-2.0 * np.log(first + 2.0**-54))
    return np.asarray(radius * np.cos(2.0 * np.pi * second))
