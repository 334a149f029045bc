// Compiles a function for several vector widths; the widest that the machine supports is chosen at program
// start. Sanitizers start after that choice, so their builds omit it. The attribute must not be used on
// templates, which GCC does not clone.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MILLRACE_WIDEST_VECTORS __attribute__((target_clones("avx512f", "fma", "default")))
#define MILLRACE_HAS_FMA __builtin_cpu_supports("fma")
#else
#define MILLRACE_WIDEST_VECTORS
#define MILLRACE_HAS_FMA false
#endif
