// Loops by the widest vectors that the machine has; which are chosen when the program starts, before
// sanitizers have. On functions that are no templates: GCC makes no clones of those.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MILLRACE_WIDEST_VECTORS __attribute__((target_clones("avx512f", "fma", "default")))
#define MILLRACE_HAS_FMA __builtin_cpu_supports("fma")
#else
#define MILLRACE_WIDEST_VECTORS
#define MILLRACE_HAS_FMA false
#endif
