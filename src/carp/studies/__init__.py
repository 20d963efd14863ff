"""Studies: many runs that differ in one setting and in their seeds, and what they say together.

A study is a grid of points times seeds. `job_queue` runs its jobs, shares them with other processes and resumes them;
`job_result` is what remains of a job; `summary` and `agreement` say what the jobs mean. `ablations` has the ablations of
the paper as points. Nothing but `ablations`, `axis_values` and `published` knows what a point is about.
"""
