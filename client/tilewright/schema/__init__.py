"""The records of the contract: problem, dtype, config, device, trial, job."""
