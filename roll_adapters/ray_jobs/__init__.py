"""What adapters share whose frameworks run their processes as actors of Ray.

run         puts a config on Ray, joins the cluster, opens and withdraws the run's record
processes   asks a job's actors on which machines and GPUs they are
comparison  compares an engine that is not exact with the framework's own model
intervals   adds up times that were taken in several processes
environment keeps the variables of a process group apart
models      finds a model's folder on this machine
"""
