"""Studies: many runs that differ in one setting and in their seeds, and what they say together.

A study is a grid of points times seeds. `jobs` runs them, shares them with other processes and resumes them;
`job_result` is what remains of a job; `study` and `agreement` say what the jobs mean. The ablations of the paper are
one kind of study: only `ablations`, `axis_values` and `published` know what their points are about.
"""
