// Leases: what a producer or a consumer lends. They hold the Python object that lent them (a plain count, where shared
// pointers cost two atomic operations each way), and are made again from a pool of instances that nanobind keeps.
#pragma once

#include <memory>

#include "common.hpp"
#include "consumer.hpp"
#include "exports.hpp"
#include "producer.hpp"

namespace bindings {

class ReadLease {
  public:
    // `lender` is the RingConsumer; `slot` is filled in by the consumer before anybody sees the lease.
    explicit ReadLease(nb::handle lender) : lender_(nb::borrow(lender)) {}
    ReadLease(const ReadLease&) = delete;
    ReadLease& operator=(const ReadLease&) = delete;
    // Nobody can have an export of it, since every export keeps the lease.
    ~ReadLease() { consumer().recycle(slot); }

    mo::ReadSlot slot;
    nb::object described;  // the Descriptor, once somebody has asked for it

    void require_open() const {
        if (released_) throw mo::LeaseError("the lease has ended (released)");
    }
    bool open() const noexcept { return !released_; }
    mo::Consumer& consumer() const noexcept { return *nb::inst_ptr<mo::Consumer>(lender_); }
    void release();

    Memory lend();
    void end_export() noexcept { --exports_; }

  private:
    nb::object lender_;
    uint32_t exports_ = 0;
    bool released_ = false;
};

class WriteLease {
  public:
    WriteLease(nb::handle lender, const mo::WriteSlot& lent) : slot(lent), lender_(nb::borrow(lender)) {}
    WriteLease(const WriteLease&) = delete;
    WriteLease& operator=(const WriteLease&) = delete;
    // Forgotten: nobody can have an export of it, since every export keeps the lease.
    ~WriteLease() {
        if (open_) give_back();
    }

    mo::WriteSlot slot;

    void require_open() const {
        if (!open_) throw mo::LeaseError("the lease has ended (published or abandoned)");
    }
    // What a lease has to be when its payload is committed: open, and nobody can write there any more.
    void require_publishable() const;
    void published() noexcept { open_ = false; }
    void abandon() noexcept;
    mo::Producer& producer() const noexcept { return *nb::inst_ptr<mo::Producer>(lender_); }

    Memory lend();
    void end_export() noexcept;

  private:
    void give_back() noexcept;

    nb::object lender_;
    std::shared_ptr<const mo::Mapping> memory_;  // taken with the first export: outlives a producer that is closed
    uint32_t exports_ = 0;
    bool open_ = true;
    bool owed_ = false;  // abandoned under an export: given back at its end
};

// Instances in place; null with a Python exception set is thrown as one.
nb::object new_read_lease(nb::handle consumer);
nb::object new_write_lease(nb::handle producer, const mo::WriteSlot& slot);

// What a call needs of a Descriptor from Python; TypeError for anything else.
const mo_descriptor& descriptor_of(PyObject* object);

void bind_read_lease(nb::module_& m);
void bind_write_lease(nb::module_& m);

}  // namespace bindings
