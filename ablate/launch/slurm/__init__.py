"""A study on SLURM. Nothing here is imported by a launch on this machine.

scheduler.py  what SLURM says of jobs: batched, seldom, never raising
"""
