// What is explored: small pieces of the ring's life, each with the rules that have to hold in it.
#pragma once

#include <vector>

#include "machine.hpp"

namespace mo::explore {

const std::vector<Scenario>& scenarios();

}  // namespace mo::explore
