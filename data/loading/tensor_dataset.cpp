#include "data/loading/tensor_dataset.h"

#include <ATen/ops/aminmax.h>

#include <utility>

#include "runtime/saved/hash.h"

namespace millrace {
namespace {

std::string list_of(const std::vector<std::string>& sizes) {
  std::string text;
  for (const std::string& size : sizes) text += (text.empty() ? "[" : ", ") + size;
  return text + "]";
}

class TensorDataset final : public Dataset {
 public:
  TensorDataset(const std::vector<FieldSpec>& fields, std::vector<at::Tensor> tensors, TensorDatasetText text)
      : fields_(fields), tensors_(std::move(tensors)), text_(std::move(text)) {}

  Problems check() {
    if (tensors_.size() != fields_.size()) {
      return {{text_.description,
               std::to_string(tensors_.size()) + " tensors for the " + std::to_string(fields_.size()) +
                   " fields of the model",
               "one tensor for each field, in the order of LayeredModel::fields"}};
    }
    Problems problems;
    for (std::size_t f = 0; f < fields_.size(); ++f) check(f, problems);
    if (problems.empty() && text_.fingerprint.empty()) text_.fingerprint = fingerprint_of_values();
    text_.where = nullptr;
    return problems;
  }

  std::int64_t size() const override { return size_; }
  std::string describe() const override {
    return text_.description + ", " + std::to_string(size_) + " samples";
  }
  std::string fingerprint() const override { return text_.fingerprint; }
  std::vector<std::string> notes() const override { return text_.notes; }
  void measure(std::int64_t, std::span<std::int64_t> lengths, std::span<std::int64_t>) const override {
    for (std::size_t d = 0; d < lengths.size() && d < lengths_.size(); ++d) lengths[d] = lengths_[d];
  }
  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    Sample sample(fields_.size());
    for (std::size_t f = 0; f < sample.size(); ++f) {
      if (!wanted[f]) continue;
      sample[f].tensor = tensors_[f].select(0, index);
    }
    return sample;
  }

 private:
  void check(std::size_t f, Problems& problems) {
    const FieldSpec& field = fields_[f];
    at::Tensor& tensor = tensors_[f];
    const std::string where = text_.where ? text_.where(f) : field.name;
    if (!tensor.defined()) return problems.push_back({where, "is an undefined tensor", {}});
    const auto kind = [](at::ScalarType type) {
      return at::isFloatingType(type) ? "floating numbers" : "integers";
    };
    if (at::isComplexType(tensor.scalar_type()) ||
        at::isFloatingType(tensor.scalar_type()) != at::isFloatingType(field.dtype)) {
      problems.push_back({where,
                          std::string("is of type ") + c10::toString(tensor.scalar_type()) +
                              ", the model reads " + kind(field.dtype),
                          "convert it (numpy's .astype, a tensor's .to)"});
      return;
    }
    if (!fits(field, tensor.sizes())) {
      std::vector<std::string> found, expected{"N"};
      for (std::int64_t d : tensor.sizes()) found.push_back(std::to_string(d));
      for (std::int64_t d : field.shape) expected.push_back(d < 0 ? "length" : std::to_string(d));
      problems.push_back({where, "is " + list_of(found) + ", the model reads " + list_of(expected),
                          "the first dimension counts the samples, which all arrays have alike"});
      return;
    }
    tensor = tensor.to(at::TensorOptions(field.dtype)).contiguous();
    if (field.limit > 0 && tensor.numel() > 0) {
      const auto [least, most] = at::aminmax(tensor);
      const auto low = least.item<std::int64_t>(), high = most.item<std::int64_t>();
      if (high >= field.limit || (low < 0 && low != field.padding))
        problems.push_back({where,
                            "has values from " + std::to_string(low) + " to " + std::to_string(high) +
                                ", the model takes 0 to " + std::to_string(field.limit - 1),
                            {}});
    }
  }

  bool fits(const FieldSpec& field, at::IntArrayRef shape) {
    if (shape.size() != field.shape.size() + 1 || shape[0] < 1 || (size_ > 0 && shape[0] != size_))
      return false;
    for (std::size_t d = 0; d < field.shape.size(); ++d) {
      const std::int64_t expected = field.shape[d], found = shape[d + 1];
      if (expected >= 0 && found != expected) return false;
      if (expected >= 0) continue;
      const auto number = static_cast<std::size_t>(-1 - expected);
      if (lengths_.size() <= number) lengths_.resize(number + 1, 0);
      if (lengths_[number] != 0 && lengths_[number] != found) return false;
      lengths_[number] = found;
    }
    size_ = shape[0];
    return true;
  }

  std::string fingerprint_of_values() const {
    Xxh3 hash;
    for (const at::Tensor& tensor : tensors_)
      hash.add(tensor.const_data_ptr(), static_cast<std::size_t>(tensor.nbytes()));
    return "tensors " + std::to_string(size_) + " " + hash.value().hex();
  }

  std::vector<FieldSpec> fields_;
  std::vector<at::Tensor> tensors_;
  TensorDatasetText text_;
  std::vector<std::int64_t> lengths_;
  std::int64_t size_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> make_tensor_dataset(const std::vector<FieldSpec>& fields,
                                                           std::vector<at::Tensor> tensors,
                                                           const TensorDatasetText& text) {
  auto dataset = std::make_shared<TensorDataset>(fields, std::move(tensors), text);
  if (Problems problems = dataset->check(); !problems.empty()) return problems;
  return std::shared_ptr<const Dataset>(std::move(dataset));
}

}  // namespace millrace
