"""The emulated machine's faces: what NVML, sysfs and the kernel's log tell of hardware that is not there."""
