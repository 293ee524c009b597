// LTTng's side of the probes: a library of its own, loaded on demand, so that the core needs no LTTng.
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "dataplane/native/lttng/tracepoints.h"
