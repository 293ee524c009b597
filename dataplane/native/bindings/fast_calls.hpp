// Methods of the hot path in CPython's own calling convention (METH_FASTCALL | METH_KEYWORDS): the interpreter calls
// them without going through nanobind's dispatch, which costs as much as the work itself.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

namespace nb = nanobind;

namespace bindings {

// For `catch (...)` in functions that the interpreter calls: turns the C++ exception that is being handled into a
// Python one. Always null.
PyObject* raise_handled() noexcept;

template <class Body>
PyObject* guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (...) {
        return raise_handled();
    }
}

// The C++ object in an instance that the method descriptor has checked to be of the right type.
template <class T>
T& self_of(PyObject* self) noexcept {
    return *nb::inst_ptr<T>(self);
}

// `__enter__` of what is its own context.
inline PyObject* enter(PyObject* self, PyObject*) noexcept { return Py_NewRef(self); }

// A new instance of a bound type, made where it lies.
template <class T, class... Args>
nb::object make_instance(PyObject* type, Args&&... args) {
    nb::object made = nb::inst_alloc(type);
    new (nb::inst_ptr<T>(made)) T(std::forward<Args>(args)...);
    nb::inst_mark_ready(made);
    return made;
}

// Puts arguments given by position or by name in their order; throws the TypeError that Python would raise.
void arrange(const char* function, const char* const* names, size_t count, PyObject* const* args,
             Py_ssize_t given, PyObject* keywords, PyObject** into);

// The arguments of a call that needs all of them.
template <size_t N>
class Arguments {
  public:
    Arguments(const char* function, const std::array<const char*, N>& names, PyObject* const* args,
              Py_ssize_t given, PyObject* keywords) {
        if (given == N && keywords == nullptr) [[likely]]
            for (size_t i = 0; i < N; ++i) values_[i] = args[i];
        else
            arrange(function, names.data(), N, args, given, keywords, values_);
    }
    PyObject* operator[](size_t i) const noexcept { return values_[i]; }

  private:
    PyObject* values_[N];
};

// A count from a Python number; TypeError for what is none, negative or too large.
uint64_t to_count_slowly(PyObject* value, const char* name);
inline uint64_t to_count(PyObject* value, const char* name) {
    if (PyLong_CheckExact(value)) [[likely]] {
        const uint64_t count = PyLong_AsUnsignedLongLong(value);
        if (count != UINT64_MAX || !PyErr_Occurred()) return count;
        PyErr_Clear();
    }
    return to_count_slowly(value, name);
}

// Seconds from a Python number; ValueError for NaN.
double to_seconds(PyObject* value, const char* name);

template <class Function>
PyCFunction as_method(Function* function) noexcept {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace bindings
