"""The run store: a database of what was measured, with the numbers of every launch, suite, sweep and cold start.

Where it is: `location`; what is in it: `records`, `tables`; made of results by `gather`; written by `register`; read by
`store`. SQLAlchemy and alembic are imported by `database`, `tables` and `store` only, for they are an extra.
"""
