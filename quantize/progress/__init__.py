"""What a build says while it runs: lines for people, JSON events for programs, the time left. The
table and the pages at its end belong to `report`."""
