// Pickles of PyTorch, read as data: no name in them is looked up, and nothing is called. LibTorch-free.
// Source: Python's pickletools.py, torch/_utils.py (_rebuild_tensor_v2).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/saved/tensor_file.h"

namespace millrace {

/// A value of a pickle. Values point at each other, also in circles.
struct PickleValue {
  /// Plain: None, a bool, a float, bytes, a set. Object: of a class that is not known.
  enum class Kind { Plain, Int, Text, Tuple, List, Dict, Global, Object, Storage, Tensor };
  Kind kind = Kind::Plain;
  std::int64_t number = 0;               ///< Int; of a Storage its elements; 1 of True
  std::string text;                      ///< Text; "module name" of a Global, an Object; key of a Storage
  std::vector<PickleValue*> items;       ///< Tuple, List; of a Dict key, value, key, value
  const PickleValue* state = nullptr;    ///< Object: its attributes, most often a Dict; may be null
  ElementType type = ElementType::F32;   ///< Storage
  const PickleValue* storage = nullptr;  ///< Tensor; it is inside the storage
  std::int64_t offset = 0;               ///< Tensor, in elements
  std::vector<std::int64_t> shape;       ///< Tensor
  bool contiguous = true;                ///< Tensor

  /// Returns the value that a Dict has under a text, or an Object as an attribute; null: none.
  const PickleValue* find(std::string_view key) const;
};

/// A state_dict takes some 150 bytes for each tensor. Values take more memory than their text.
inline constexpr std::size_t kMostPickleBytes = std::size_t{16} << 20;

/// The treatment of classes and functions other than those of tensors and dicts.
enum class OtherClasses {
  Refused,  ///< a Problem that names the class
  Kept      ///< an Object
};

/// The values of one pickle of protocols 2 to 5, by the opcodes that state_dicts and metadata need.
/// Move-only.
class Pickle {
 public:
  /// `where` begins the messages. Problems also: more than kMostPickleBytes or 2 million values.
  static Result<Pickle> read(std::string_view bytes, const std::string& where, OtherClasses others);
  Pickle(Pickle&&) noexcept;
  Pickle& operator=(Pickle&&) noexcept;
  ~Pickle();
  const PickleValue& root() const { return *root_; }
  std::size_t bytes() const;  ///< bytes that it takes of the text, which may go on behind it
  /// The types of all storages that it refers to, by key.
  const std::map<std::string, ElementType>& storages() const;

 private:
  class Reader;
  Pickle();
  std::unique_ptr<Reader> reader_;  ///< it owns the values
  const PickleValue* root_ = nullptr;
};

/// The hint of a Problem where a file holds no plain state_dict.
inline constexpr const char* kStateDictHint =
    "in Python: torch.save(model.state_dict(), FILE), or write it with safetensors.torch.save_file";

}  // namespace millrace
