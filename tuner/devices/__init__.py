"""The devices that can be tuned, behind one interface; see :mod:`tuner.devices.base`."""
