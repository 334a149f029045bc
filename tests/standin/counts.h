// Counts what a program asks of a GPU: STANDIN_COUNTS=FILE (README.md).
#pragma once

#include <cstddef>
#include <string>

namespace standin::counts {

/// What a real GPU or its driver would be asked to do.
enum class Kind {
  Operator,    ///< would launch a kernel or more
  Copy,        ///< between host and GPU, or between GPUs
  Wait,        ///< the host stands still until the GPU has come so far
  Allocation,  ///< of a GPU's or of page-locked memory, where LibTorch's allocators have nothing left
  Event,       ///< made, recorded or waited for by a stream: the host goes on
  Peak,        ///< pieces of memory in use when the GPU was fullest
};

/// Counts one for the calling thread's GPU, under `name` and under the place in the program that asked for
/// it. Does nothing unless STANDIN_COUNTS is set.
void add(Kind kind, const std::string& name, std::size_t bytes = 0);
/// Counts a copy, under its direction and whether the host's memory is page-locked.
void add_copy(const void* to, const void* from, std::size_t bytes);

/// LibTorch's allocator gave out or took back a piece of the GPU's memory. What lay there at the fullest
/// moment becomes rows of the kind "peak".
void took(int device, const void* address, std::size_t bytes);
void gave_back(int device, const void* address);
/// Whether somebody wants the counts.
bool wanted();

/// While one lives its thread counts nothing: what it does is the stand-in's own.
class Quiet {
 public:
  Quiet() { ++depth(); }
  ~Quiet() { --depth(); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  static int& depth();
};

/// Counts one operator whose body here is made of several.
struct One {
  explicit One(const char* name) {
    --quiet.depth();
    add(Kind::Operator, name);
    ++quiet.depth();
  }
  Quiet quiet;
};

}  // namespace standin::counts
