"""The store of results: devices, problems, jobs, every trial, artifacts, winners, and the event log.

One module per subject, one function per question; functions take the session of the one transaction
boundary, :meth:`tuner.store.database.Store.begin`, and give plain frozen records, never rows.
"""
