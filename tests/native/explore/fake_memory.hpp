// The files and mappings of an execution: plain memory that starts as zeros and lies at the same place every time.
#pragma once

#include <string>

namespace mo::explore {

void forget_files() noexcept;

// What lies there: "page.taken" (the kind of word) and "page2.taken" (which).
void describe(const void* address, std::string& kind, std::string& name);

}  // namespace mo::explore
