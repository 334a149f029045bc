// The options of a model beside its name: described in the model's own file, carried by the registry, and
// read from there by `train`, `profile`, job files and --help, which know no option themselves.
// LibTorch-free: the worker hands the descriptions to `millrace` as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

/// One option, made by one of the functions below.
struct ModelOption {
  enum class Kind { Integer, Number, Choice, Integers };
  std::string name;  ///< of the flag, without its dashes: "width"
  Kind kind = Kind::Integer;
  std::string value = "N";  ///< what --help calls its value; of a choice "a|b"
  std::string fallback;
  double minimum = 0, maximum = 0;  ///< of numbers
  std::string help;                 ///< one or more sentences
  /// The weights do not show it (dropout): checkpoints record it, and a run that resumes is held to it.
  bool recorded = false;
};

template <class Number>
struct OptionRange {
  Number minimum, maximum;
};
ModelOption integer_option(std::string name, std::int64_t fallback, OptionRange<std::int64_t> range,
                           std::string help, std::string value = "N");
ModelOption number_option(std::string name, double fallback, OptionRange<double> range, std::string help,
                          std::string value = "F");
ModelOption choice_option(std::string name, std::string fallback, const std::vector<std::string>& choices,
                          std::string help);
/// Rising integers: "2000,10000".
ModelOption integers_option(std::string name, const std::vector<std::int64_t>& fallback,
                            OptionRange<std::int64_t> range, std::string help, std::string value = "N,...");
ModelOption recorded(ModelOption option);

struct ModelDescription {
  std::string name;
  std::string summary;  ///< one sentence: what it is, with its source
  std::vector<ModelOption> options;

  const ModelOption* find(std::string_view option) const;  ///< nullptr: it has none of that name
};

/// An option as a user gave it. `where` is for messages: "--width" if empty.
struct GivenOption {
  std::string name;
  std::string text;
  std::string where;
};
using GivenOptions = std::vector<GivenOption>;

/// A value for every option that the model describes. Asking for another one is a bug (MILLRACE_CHECK).
class ModelOptions {
 public:
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::vector<std::int64_t> integers(std::string_view name) const;
  const std::string& text(std::string_view name) const;

 private:
  friend Result<ModelOptions> options_for(const ModelDescription&, const GivenOptions&);
  std::map<std::string, std::string, std::less<>> values_;
};

/// Problems, all at once: an option that the model does not have (nearest as hint), a value that is no
/// number, out of range or no choice.
Result<ModelOptions> options_for(const ModelDescription& model, const GivenOptions& given);

/// (name, value) of the options that are recorded in checkpoints; a number has one spelling.
std::vector<std::pair<std::string, std::string>> recorded_values(const ModelDescription& model,
                                                                 const ModelOptions& options);

/// The name under which all exported programs are described: they are known by their path.
inline constexpr const char* kExportedModels = "FILE.pt2";

/// The description of FILE.pt2 for every name of that ending. Problem: there is none of that name (nearest as
/// hint).
Result<ModelDescription> find_model(const std::vector<ModelDescription>& models, const std::string& name);

/// Finds problems of all descriptions together: a name twice, or one option name with two kinds.
Problems validate(const std::vector<ModelDescription>& models);

Json to_json(const std::vector<ModelDescription>& models);
Result<std::vector<ModelDescription>> models_from(const Json& json);

}  // namespace millrace
