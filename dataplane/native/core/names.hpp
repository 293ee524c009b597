// The words that stand for the ABI's numbers on the Python side.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "error.hpp"
#include "ring.h"

namespace mo {

inline const char* end_reason_name(uint32_t reason) noexcept {
    switch (reason) {
        case MO_END_OF_STREAM: return "end_of_stream";
        case MO_END_STOPPED: return "stopped";
        case MO_END_MIGRATED: return "migrated";
        case MO_END_CUT: return "cut";
        default: return "failed";  // a number from a peer that nobody knows is no orderly end
    }
}

inline mo_end_reason parse_end_reason(std::string_view name) {
    for (const auto reason : {MO_END_OF_STREAM, MO_END_STOPPED, MO_END_FAILED, MO_END_MIGRATED})
        if (name == end_reason_name(reason)) return reason;
    throw RingError("'" + std::string(name) +
                    "' is no reason to end a ring (end_of_stream, stopped, failed, migrated)");
}

inline mo_edge_policy parse_policy(std::string_view name) {
    if (name == "block") return MO_BLOCK;
    if (name == "drop_oldest") return MO_DROP_OLDEST;
    throw RingError("'" + std::string(name) + "' is no policy of an edge (block, drop_oldest)");
}

}  // namespace mo
