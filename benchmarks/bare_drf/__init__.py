"""The smallest endpoint that stores a submission with Django REST framework: one insert and nothing else."""
