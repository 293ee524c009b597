#include "fast_calls.hpp"

#include <cmath>
#include <new>
#include <string>

#include "common.hpp"
#include "error.hpp"

namespace bindings {

PyObject* raise_handled() noexcept {
    try {
        throw;
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const mo::RingEnded& ended) {
        set_ring_ended(ended);
    } catch (const mo::LeaseError& error) {
        PyErr_SetString(lease_error().ptr(), error.what());
    } catch (const mo::RingError& error) {
        PyErr_SetString(ring_error().ptr(), error.what());
    } catch (const nb::builtin_exception& error) {
        PyObject* type = PyExc_RuntimeError;
        if (error.type() == nb::exception_type::value_error) type = PyExc_ValueError;
        if (error.type() == nb::exception_type::type_error) type = PyExc_TypeError;
        if (error.type() == nb::exception_type::index_error) type = PyExc_IndexError;
        if (error.type() == nb::exception_type::buffer_error) type = PyExc_BufferError;
        PyErr_SetString(type, error.what());
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

void arrange(const char* function, const char* const* names, size_t count, PyObject* const* args,
             Py_ssize_t given, PyObject* keywords, PyObject** into) {
    const std::string called = std::string(function) + "()";
    const size_t by_name = keywords == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(keywords));
    if (static_cast<size_t>(given) + by_name > count)
        throw nb::type_error((called + " takes " + std::to_string(count) + " arguments, not " +
                              std::to_string(static_cast<size_t>(given) + by_name))
                                 .c_str());
    for (size_t i = 0; i < count; ++i) into[i] = i < static_cast<size_t>(given) ? args[i] : nullptr;
    for (size_t i = 0; i < by_name; ++i) {
        PyObject* name = PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i));
        size_t place = 0;
        while (place < count && PyUnicode_CompareWithASCIIString(name, names[place]) != 0) ++place;
        if (place == count)
            throw nb::type_error((called + " has no argument '" + nb::str(name).c_str() + "'").c_str());
        if (into[place] != nullptr)
            throw nb::type_error((called + " got the argument '" + names[place] + "' twice").c_str());
        into[place] = args[static_cast<size_t>(given) + i];
    }
    for (size_t i = 0; i < count; ++i)
        if (into[i] == nullptr)
            throw nb::type_error((called + " needs the argument '" + names[i] + "'").c_str());
}

uint64_t to_count_slowly(PyObject* value, const char* name) {
    const nb::object number = nb::steal(PyNumber_Index(value));
    if (!number.is_valid()) {
        PyErr_Clear();
        throw nb::type_error((std::string(name) + " is a whole number, not a " + Py_TYPE(value)->tp_name).c_str());
    }
    const uint64_t count = PyLong_AsUnsignedLongLong(number.ptr());
    if (count == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        throw nb::type_error((std::string(name) + " is a number from 0 to 2**64 - 1").c_str());
    }
    return count;
}

double to_seconds(PyObject* value, const char* name) {
    double seconds;
    if (PyFloat_CheckExact(value)) [[likely]] {
        seconds = PyFloat_AS_DOUBLE(value);
    } else {
        seconds = PyFloat_AsDouble(value);
        if (seconds == -1.0 && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
            PyErr_Clear();
            throw nb::type_error((std::string(name) + " is a number, not a " + Py_TYPE(value)->tp_name).c_str());
        }
    }
    check_timeout(seconds);
    return seconds;
}

}  // namespace bindings
