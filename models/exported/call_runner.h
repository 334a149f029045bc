// A run of ATen calls as a small program: places instead of names, operators looked up once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/exported/flat_program.h"
#include "models/exported/weight_later.h"
#include "runtime/base/masks_from.h"

namespace millrace {

/// The arguments of one pass through the calls, besides its tensors.
struct CallPass {
  const SymbolValues* symbols = nullptr;
  bool training = true;  ///< else dropout and batch statistics are off and buffers stay as they are
  MasksFrom masks = MasksFrom::Device;
  std::uint64_t random_seed = 0;
  PendingWeights* pending = nullptr;  ///< where weight gradients wait; null: autograd computes them
};

/// Immutable and thread-safe.
class CallRunner {
 public:
  /// `given`: names of the values that `run` gets, in order; `trainable` of them, from `first_parameter` on,
  /// are parameters with gradients. `buffers`: values that are buffers. Problems: arguments that an operator
  /// does not take.
  static Result<std::shared_ptr<const CallRunner>> compile(std::vector<FlatCall> calls,
                                                           const FlatProgram& program,
                                                           const std::vector<std::string>& given,
                                                           std::size_t first_parameter, std::size_t trainable,
                                                           const std::set<std::string>& buffers,
                                                           const std::vector<std::string>& wanted);
  ~CallRunner();

  /// The wanted values. Under autograd if grad mode is on.
  std::vector<at::Tensor> run(std::vector<at::Tensor> given, const CallPass& pass) const;
  bool draws() const { return draws_; }  ///< random numbers, in training

 private:
  struct Call;
  friend class CallCompiler;
  CallRunner();
  /// Runs the calls as run() does. `running` is the call that is being run.
  std::vector<at::Tensor> run_calls(std::vector<at::Tensor>& values, const CallPass& pass,
                                    const Call*& running) const;
  static std::string place_of(const Call& call, const std::vector<at::Tensor>& values);
  std::vector<Call> calls_;
  std::size_t num_places_ = 0;
  std::vector<int> wanted_;
  std::vector<int> buffers_;  ///< places among the given
  bool draws_ = false;
};

}  // namespace millrace
