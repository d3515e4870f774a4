"""The planner: short measured trials choose file, layout, threads and slots for a workload."""
