"""Xid errors of NVIDIA's GPU driver: which kind of incident each is, how bad, and what NVIDIA says to do.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), columns "Resolution Bucket (Immediate Action)"
and "Trigger Conditions". The severities follow from that action: what needs a reset or a reboot is critical, what ends
one application is a warning, what NVIDIA says to ignore or blames the application for is information; where the catalog
names no action (163 and up) they are our judgement. Numbers that the catalog calls unused, and numbers that it does not
have, are warnings: an unknown error is told, never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from observatory.model.incident import Severity

_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

_IGNORE = "nothing, unless it comes often"
_RESTART = "restart the application"
_RESET = "reset the GPU"
_REBOOT = "reboot the machine"
_OWN_CODE = "debug the application (compute-sanitizer, cuda-gdb)"
_SOFTWARE = "update driver and firmware"
_NVLINK = "see the catalog's workflow for NVLink errors; reset the GPU"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number: what it means in words of ours, the kind of incident, and what to do."""

    code: int
    meaning: str
    severity: Severity
    mend: str
    kind: str = "xid"


_TABLE: tuple[Xid, ...] = (
    Xid(8, "the GPU stopped processing", _WARNING, _RESTART),
    Xid(13, "an exception of the graphics or compute engine", _INFO, _OWN_CODE),
    Xid(25, "an invalid push buffer stream", _WARNING, _RESTART),
    Xid(31, "a page fault of GPU memory", _INFO, _OWN_CODE),
    Xid(32, "a damaged push buffer stream, often of the PCI Express link", _WARNING, _RESTART),
    Xid(37, "an error of the driver's firmware", _INFO, _IGNORE),
    Xid(38, "an error of the driver's firmware", _INFO, _IGNORE),
    Xid(43, "the GPU stopped processing after a fault of the application", _INFO, _OWN_CODE),
    Xid(44, "a fault of the graphics engine while it switched context", _INFO, _IGNORE),
    Xid(45, "clean-up after an application ended or failed", _INFO, "see the other Xid around it"),
    Xid(46, "the GPU stopped processing", _CRITICAL, _RESET),
    Xid(48, "a double-bit ECC error", _CRITICAL, _RESET, "ecc_uncorrectable"),
    Xid(54, "auxiliary power is not connected", _CRITICAL, "connect the power cables"),
    Xid(60, "an exception of the video processor", _WARNING, _RESTART),
    Xid(62, "an internal micro-controller halted", _CRITICAL, _RESET),
    Xid(
        63, "a row or page of memory is to be replaced", _WARNING, "reset the GPU when convenient", "row_remap_pending"
    ),
    Xid(64, "a row or page of memory could not be replaced", _CRITICAL, _RESET, "row_remap_failed"),
    Xid(66, "an illegal access by the driver", _INFO, _IGNORE),
    Xid(67, "an illegal access by the driver", _INFO, _IGNORE),
    Xid(69, "a class error of the graphics engine", _WARNING, _RESTART),
    Xid(74, "an NVLink error", _CRITICAL, _NVLINK, "nvlink_errors"),
    Xid(78, "a virtual GPU did not start", _WARNING, _SOFTWARE),
    Xid(79, "the GPU has fallen off the bus", _CRITICAL, _REBOOT, "gpu_lost"),
    Xid(80, "damaged data were sent to the GPU", _WARNING, _RESTART),
    Xid(92, "many single-bit ECC errors", _WARNING, _IGNORE, "ecc_surge"),
    Xid(93, "the wear limit of the InfoROM is reached", _INFO, "clear the limit with nvflash"),
    Xid(94, "a memory error, contained to one application", _WARNING, _RESTART, "ecc_uncorrectable"),
    Xid(95, "a memory error that was not contained", _CRITICAL, _RESET, "ecc_uncorrectable"),
    Xid(106, "a test message", _INFO, _IGNORE),
    Xid(107, "a test message", _INFO, _IGNORE),
    Xid(109, "a context switch took too long", _CRITICAL, _RESET),
    Xid(110, "a security fault", _CRITICAL, "power the machine off and on"),
    Xid(119, "the GPU's system processor (GSP) does not answer", _CRITICAL, _RESET),
    Xid(120, "an error of the GPU's system processor (GSP)", _CRITICAL, _RESET),
    Xid(121, "corrected errors of the link to the Grace processor", _INFO, "reset the GPU in a service window"),
    Xid(136, "the training of an NVLink failed", _CRITICAL, _RESET, "nvlink_errors"),
    Xid(137, "a fault of a remote access over NVLink", _INFO, _OWN_CODE),
    Xid(140, "an ECC error that the driver could not handle", _CRITICAL, _RESET, "ecc_uncorrectable"),
    Xid(141, "an error of CUDA's fast path", _INFO, _IGNORE),
    Xid(143, "the GPU could not be initialised", _CRITICAL, _RESET),
    Xid(144, "an NVLink error (SAW)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(145, "an NVLink error (RLW)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(146, "an NVLink error (TLW)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(147, "an NVLink error (TREX)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(148, "an NVLink error (NVLPW)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(149, "an NVLink error (NETIR)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(150, "an NVLink error (MSE)", _WARNING, _NVLINK, "nvlink_errors"),
    Xid(151, "an error of key rotation", _WARNING, "restart the virtual machine"),
    Xid(154, "the driver says what is to be done", _WARNING, "do what the line says"),
    Xid(155, "an NVLink was taken down on purpose", _CRITICAL, _RESET, "nvlink_errors"),
    Xid(156, "a part of the GPU was retired", _CRITICAL, _RESET, "row_remap_pending"),
    Xid(157, "a bad part of the GPU could not be retired", _WARNING, "plan its replacement", "row_remap_failed"),
    Xid(158, "the GPU did not answer in time", _CRITICAL, _RESET),
    Xid(160, "a memory channel was retired", _INFO, _IGNORE),
    Xid(161, "a memory channel could not be retired", _WARNING, "plan its replacement"),
    Xid(162, "power smoothing works again", _INFO, _IGNORE),
    Xid(163, "power smoothing is off", _INFO, "look after cooling"),
    Xid(164, "the power smoothing circuit is nearly worn out", _INFO, "plan the GPU's replacement"),
    Xid(165, "the power smoothing circuit is worn out", _WARNING, "replace the GPU if power swings matter"),
    Xid(167, "a PCI Express access did not end", _CRITICAL, _RESET),
    Xid(168, "less GPU memory than there should be", _WARNING, "switch ECC on, or reboot"),
    Xid(169, "an internal micro-controller halted", _CRITICAL, _RESET),
    Xid(171, "an uncorrectable error of GPU memory", _CRITICAL, _RESET, "ecc_uncorrectable"),
    Xid(172, "an uncorrectable error of a GPU's caches", _CRITICAL, _RESET, "ecc_uncorrectable"),
)

_ENGINES: dict[str, tuple[int, ...]] = {
    "a copy engine": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "a video decoder": (68, 83, 84, 88, 89, 96, 97, 98),
    "a JPEG engine": (82, *range(99, 106)),
    "the optical flow engine": (86, 139),
    "a video encoder": (142,),
}
_OF_ENGINES = tuple(
    Xid(code, f"an exception of {engine}", _WARNING, _RESTART) for engine, codes in _ENGINES.items() for code in codes
)

XIDS: dict[int, Xid] = {xid.code: xid for xid in sorted((*_TABLE, *_OF_ENGINES), key=lambda xid: xid.code)}
"""By number."""


def xid_of(code: str | None) -> Xid:
    """What is known of a number as a log gives it; a number that is not in the table, or none, is a warning."""
    number = int(code) if code is not None and code.isdecimal() and len(code) < 10 else -1
    known = XIDS.get(number)
    return known or Xid(number, "an error that the table of numbers does not have", _WARNING, f"look it up: {CATALOG}")
