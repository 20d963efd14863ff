"""Studies: sets of runs that differ in one setting and in their seeds, and their evaluation.

A study is a grid of points times seeds. `jobs` runs them, shares them with other processes and resumes them;
`job_result` is the record of a job; `study` and `agreement` summarise the jobs. The ablations of the paper are
one kind of study: only `ablations`, `axis_values` and `published` know what their points are about.
"""
