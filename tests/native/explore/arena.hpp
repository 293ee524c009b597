// Where explored code and scenarios allocate: forgotten as a whole at the end of an execution, because actors that
// died and executions that were given up destroy nothing.
#pragma once

namespace mo::explore {

// While one lives, operator new takes from the arena (Inside) or from the heap (Outside).
class Inside {
  public:
    Inside() noexcept;
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

  private:
    bool before_;
};

class Outside {
  public:
    Outside() noexcept;
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

  private:
    bool before_;
};

void set_inside(bool inside) noexcept;
void forget_arena() noexcept;

}  // namespace mo::explore
