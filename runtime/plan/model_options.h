// The model-specific options. The model's own file describes them, and the registry holds them. `train`,
// `profile`, job files and --help read them there and hard-code no option. LibTorch-free: the worker passes
// the descriptions to `millrace` as JSON.
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
  enum class Kind { Integer, Number, Choice, Integers, Sizes, Text, Path };
  std::string name;  ///< the flag without its dashes: "width"
  Kind kind = Kind::Integer;
  std::string value = "N";  ///< the value's name in --help; of a choice "a|b"
  std::string fallback;
  double minimum = 0, maximum = 0;  ///< only for numbers
  std::string help;                 ///< one or more sentences
  /// Whether checkpoints record the value, because the weights do not show it (dropout). A resumed run must
  /// have the same value.
  bool recorded = false;
  bool of_gradients = false;  ///< only commands that compute gradients take it
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
/// Integers in any order: "512,256,128".
ModelOption sizes_option(std::string name, const std::vector<std::int64_t>& fallback,
                         OptionRange<std::int64_t> range, std::string help, std::string value = "N,...");
/// Any text without line ends; may be empty.
ModelOption text_option(std::string name, std::string fallback, std::string help, std::string value = "TEXT");
/// An existing file or folder, or nothing. Its existence is checked with the options, on each host of a run.
ModelOption path_option(std::string name, std::string fallback, std::string help, std::string value = "PATH");
ModelOption recorded(ModelOption option);

struct ModelDescription {
  std::string name;
  std::string summary;  ///< one sentence: what the model is, with its source
  std::vector<ModelOption> options;

  const ModelOption* find(std::string_view option) const;  ///< nullptr: no option has that name
};

/// An option given by the user. `where` is for messages: "--width" if empty.
struct GivenOption {
  std::string name;
  std::string text;
  std::string where;
};
using GivenOptions = std::vector<GivenOption>;

/// A value for every option of a model. Reading any other name is a bug (MILLRACE_CHECK).
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

/// Returns the given values, and the defaults of the other options. Returns all errors at once: an unknown
/// option (the nearest name as its hint), a value that is not a number, out of range or not a choice, a path
/// that does not exist.
Result<ModelOptions> options_for(const ModelDescription& model, const GivenOptions& given);

/// Returns (name, value) of the options that checkpoints record. Equal numbers have equal spellings.
std::vector<std::pair<std::string, std::string>> recorded_values(const ModelDescription& model,
                                                                 const ModelOptions& options);

/// The name of the description that all exported programs share. A user names such a program by its path.
inline constexpr const char* kExportedModels = "FILE.pt2";

/// Returns the description of the model `name`; every name that ends in .pt2 has the description FILE.pt2.
/// Returns an error if the name is unknown, with the nearest name as its hint.
Result<ModelDescription> find_model(const std::vector<ModelDescription>& models, const std::string& name);

/// Returns an error for each duplicate name, and for each option name with two kinds, over all descriptions.
Problems validate(const std::vector<ModelDescription>& models);

Json to_json(const std::vector<ModelDescription>& models);
Result<std::vector<ModelDescription>> models_from(const Json& json);

}  // namespace millrace
