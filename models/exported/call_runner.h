// Compiles a sequence of ATen calls into a small program. Values have places instead of names, and operators
// are looked up once.
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
  bool training = true;  ///< false: no dropout, no batch statistics, and buffers keep their values
  bool draws = true;     ///< false: dropout and other draws are as in evaluation, and nothing else is
  MasksFrom masks = MasksFrom::Device;
  std::uint64_t random_seed = 0;
  PendingWeights* pending = nullptr;  ///< collects weight gradients; null: autograd computes them
};

/// Runs compiled calls. Immutable and thread-safe.
class CallRunner {
 public:
  /// Compiles calls. `given` has the names of the values that `run` gets, in order. `trainable` of them, from
  /// `first_parameter` on, are parameters with gradients. `buffers` are the values that are buffers, `wanted`
  /// those that `run` returns. Problems: arguments that an operator does not take.
  static Result<std::shared_ptr<const CallRunner>> compile(std::vector<FlatCall> calls,
                                                           const FlatProgram& program,
                                                           const std::vector<std::string>& given,
                                                           std::size_t first_parameter, std::size_t trainable,
                                                           const std::set<std::string>& buffers,
                                                           const std::vector<std::string>& wanted);
  ~CallRunner();

  /// Returns the wanted values. Autograd records the calls if grad mode is on.
  std::vector<at::Tensor> run(std::vector<at::Tensor> given, const CallPass& pass) const;
  bool draws() const { return draws_; }  ///< returns whether the calls draw random numbers in training

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
  std::vector<int> buffers_;  ///< places of the buffers among the given values
  bool draws_ = false;
};

}  // namespace millrace
