// Deliberate mistakes: each has to be found by some scenario, or a reason says why it harms nobody.
#pragma once

#include <vector>

#include "machine.hpp"

namespace mo::explore {

const std::vector<Mutant>& mutants();

struct Harmless {
    Mutant mutant;
    const char* why;
};
const std::vector<Harmless>& harmless_mutants();

}  // namespace mo::explore
