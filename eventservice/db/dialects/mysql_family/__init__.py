"""The common part of MariaDB and MySQL. Their packages derive from these modules."""
