"""Every operation of the service: the tests fail for one that is not written down here."""

from __future__ import annotations

# The scope that each operation asks for. None: it needs no key.
OPERATIONS = {
    "live": None,
    "ready": None,
    "startup": None,
    "list_jobs": "read",
    "get_job": "read",
    "list_trials": "read",
    "follow_job": "read",
    "best_config": "read",
    "lookup_best_configs": "read",
    "artifact": "read",
    "families": "read",
    "devices": "read",
    "metrics": "read",
    "list_config_sets": "read",
    "current_config_set": "read",
    "config_set": "read",
    "diff_config_sets": "read",
    "config_set_bundle": "read",
    "config_set_artifacts": "read",
    "list_misses": "read",
    "export_results": "read",
    "report_misses": "read",
    "gemm": "run",
    "gemm_shared": "run",
    "tune": "tune",
    "cancel_job": "tune",
    "pin_config_set": "admin",
    "unpin_config_set": "admin",
    "import_results": "admin",
}
