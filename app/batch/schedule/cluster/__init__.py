"""A job on a Ray cluster.

Plain Ray actors, not Ray Data's ``map_batches`` over a pool of them: there a result is handed over
with the whole block that it belongs to, and a block is computed again, as often as it takes, when
its actor dies. A job needs each answer when it is there (the journal has it then, whatever dies
next, and its slot is refilled), and has to count what a row has killed. So the job asks actors for
rows exactly as it asks engines on this machine, and everything that holds there holds here.
"""
