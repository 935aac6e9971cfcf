"""The commands: where engine, simulator, workloads and reports are put together."""
