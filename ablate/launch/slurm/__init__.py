"""A study on SLURM, from a plan to jobs, and from a killed process to the next attempt.

launch.py     `ablate launch cluster=slurm`: shows, freezes, submits, returns
submit.py     what is missing and not in the queue
request.py    trials by what they ask for, and the sum of it; limits.py: how much SLURM takes
arrays.py     what fits now, and a feeder for the rest; sbatch.py: the directives
source.py     the code that the jobs run, frozen
start.py      what srun starts on a node: the pickled function, and little else
task.py       what one task of an array does on its node; ending.py: why it was told to stop
epilogue.py   a word for a process that left none; autopsy.py: of what it died
feed.py       the job that submits what was held back, and what was lost
ill_nodes.py  nodes that kill trials are left out
scheduler.py  what SLURM says of jobs: batched, seldom, never raising; states.py: its words
identity.py   which job this process is
"""
