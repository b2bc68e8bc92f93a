"""The least that a durable submission over Django REST framework costs: one endpoint, one insert, nothing else."""
