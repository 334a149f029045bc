#include "driver/checkpoint/dcp_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "driver/checkpoint/pickle.h"
#include "driver/checkpoint/pt_file.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;
using Kind = PickleValue::Kind;
using Sizes = std::vector<std::int64_t>;

constexpr const char* kMetadata = ".metadata";
constexpr const char* kDamaged = "the checkpoint is damaged, or of a PyTorch that writes it in another way";
constexpr std::size_t kMostPieces = 4096;  // of a tensor: each is compared with each

/// The bytes of a file that hold a piece.
struct Place {
  std::string file;
  std::int64_t offset = 0, length = 0;
  bool transformed = false;
};

/// A piece of a tensor.
struct Piece {
  Sizes offsets, sizes;
  SavedTensor stored;
};

bool are_apart(const Piece& a, const Piece& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) return true;
  }
  return false;
}

void copy_piece(const Piece& piece, const Sizes& shape, std::size_t of_one, std::string& to) {
  const std::size_t rows = shape.size() - 1;  // dimensions before the last
  const std::size_t row = static_cast<std::size_t>(piece.sizes.back()) * of_one;
  Sizes index(rows, 0);
  for (std::size_t from = 0; from < piece.stored.elements.size(); from += row) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < rows; ++d) at = at * shape[d] + piece.offsets[d] + index[d];
    at = at * shape[rows] + piece.offsets[rows];
    std::memcpy(to.data() + static_cast<std::size_t>(at) * of_one, piece.stored.elements.data() + from, row);
    for (std::size_t d = rows; d-- > 0 && ++index[d] == piece.sizes[d];) index[d] = 0;
  }
}

/// It throws a Problem.
class DcpFolder {
 public:
  DcpFolder(std::string path, const Pickle& metadata) : path_(std::move(path)), root_(metadata.root()) {}

  SavedTensors open(const std::string& key);

 private:
  [[noreturn]] void fail(const std::string& what, const char* hint = kDamaged) const {
    throw Problem{path_, what, hint};
  }
  const PickleValue& member(const PickleValue& of, const char* name, Kind kind) const {
    const PickleValue* found = of.find(name);
    if (!found || found->kind != kind) fail(std::string("has metadata without ") + name);
    return *found;
  }
  Sizes sizes(const PickleValue& tuple) const {
    Sizes all;
    for (const PickleValue* item : tuple.items) {
      if (item->kind != Kind::Int || item->number < 0 || all.size() == 64)
        fail("has metadata with a wrong size");
      all.push_back(item->number);
    }
    return all;
  }
  void read_places();
  std::vector<std::string> path_of(const std::string& name) const;
  std::string chosen_name(const std::string& name, const std::vector<std::string>& key) const;
  SavedTensor stored(const std::string& name, const Sizes& offsets);
  SavedTensor tensor(const std::string& name, const PickleValue& about);
  std::string_view file(const std::string& name);

  std::string path_;
  const PickleValue& root_;
  const PickleValue* paths_ = nullptr;  ///< names -> tuples of keys; null: not told
  std::map<std::pair<std::string, Sizes>, Place> places_;
  std::map<std::string, std::shared_ptr<MappedFile>> files_;
  std::vector<std::shared_ptr<const void>> owners_;
  std::uint64_t joined_ = 0;  ///< bytes that were put together
};

void DcpFolder::read_places() {
  const PickleValue& dict = member(root_, "storage_data", Kind::Dict);
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const PickleValue &index = *dict.items[i], &info = *dict.items[i + 1];
    const PickleValue* offset = index.find("offset");
    const PickleValue* transforms = info.find("transform_descriptors");
    places_[{member(index, "fqn", Kind::Text).text,
             offset && offset->kind == Kind::Tuple ? sizes(*offset) : Sizes{}}] = {
        .file = member(info, "relative_path", Kind::Text).text,
        .offset = member(info, "offset", Kind::Int).number,
        .length = member(info, "length", Kind::Int).number,
        .transformed = transforms && transforms->kind != Kind::Plain};
  }
}

/// The keys of nested dicts that lead to a name.
std::vector<std::string> DcpFolder::path_of(const std::string& name) const {
  const PickleValue* path = paths_ ? paths_->find(name) : nullptr;
  if (!path || path->kind != Kind::Tuple) return {name};
  std::vector<std::string> parts;
  for (const PickleValue* item : path->items)
    parts.push_back(item->kind == Kind::Int ? std::to_string(item->number) : item->text);
  return parts;
}

/// The name below the key; empty: it stands elsewhere. Without paths, names begin with the key and a dot.
std::string DcpFolder::chosen_name(const std::string& name, const std::vector<std::string>& key) const {
  const std::vector<std::string> path = path_of(name);
  std::string below;
  if (path.size() == 1 && !key.empty()) {
    std::string prefix;
    for (const std::string& part : key) prefix += part + ".";
    return name.starts_with(prefix) ? name.substr(prefix.size()) : "";
  }
  if (path.size() <= key.size() || !std::equal(key.begin(), key.end(), path.begin())) return "";
  for (std::size_t i = key.size(); i < path.size(); ++i) below += (i == key.size() ? "" : ".") + path[i];
  return below;
}

std::string_view DcpFolder::file(const std::string& name) {
  auto found = files_.find(name);
  if (found == files_.end()) {
    const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                       std::ranges::all_of(name, [](unsigned char c) {
                         return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                                c == '.' || c == '_' || c == '-';
                       });
    if (!plain) fail("names the file " + escaped(name) + ", which may lie elsewhere");
    Result<MappedFile> mapped = MappedFile::open((fs::path(path_) / name).string());
    if (!mapped) throw mapped.problems().front();
    found = files_.emplace(name, std::make_shared<MappedFile>(*std::move(mapped))).first;
    owners_.push_back(found->second);
  }
  return found->second->bytes();
}

SavedTensor DcpFolder::stored(const std::string& name, const Sizes& offsets) {
  auto found = places_.find({name, offsets});
  if (found == places_.end()) found = places_.find({name, {}});
  if (found == places_.end()) fail("does not say where a piece of " + escaped(name) + " is");
  const Place& place = found->second;
  if (place.transformed)
    fail(escaped(name) + " is compressed or transformed", "save it without extensions of the writer");
  const std::string_view bytes = file(place.file);
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (place.offset < 0 || place.length < 0 || place.offset > size || place.length > size - place.offset)
    fail(escaped(name) + " lies beyond the end of " + place.file + ", which has " + std::to_string(size) +
         " bytes");
  const std::string where = (fs::path(path_) / place.file).string() + " (" + escaped(name) + ")";
  Result<std::vector<SavedTensor>> tensors = tensors_of_archive(
      bytes.substr(static_cast<std::size_t>(place.offset), static_cast<std::size_t>(place.length)), where);
  if (!tensors) throw tensors.problems().front();
  if (tensors->size() != 1) throw Problem{where, "is no tensor", kStateDictHint};
  return std::move(tensors->front());
}

SavedTensor DcpFolder::tensor(const std::string& name, const PickleValue& about) {
  const Sizes shape = sizes(member(about, "size", Kind::Tuple));
  const PickleValue& chunks = member(about, "chunks", Kind::List);
  if (chunks.items.empty() || chunks.items.size() > kMostPieces)
    fail(escaped(name) + " has " + std::to_string(chunks.items.size()) + " pieces");
  std::vector<Piece> pieces;
  std::uint64_t bytes = 0;
  for (const PickleValue* chunk : chunks.items) {
    Piece piece{.offsets = sizes(member(*chunk, "offsets", Kind::Tuple)),
                .sizes = sizes(member(*chunk, "sizes", Kind::Tuple)),
                .stored = {}};
    bool inside = piece.offsets.size() == shape.size() && piece.sizes.size() == shape.size();
    for (std::size_t d = 0; inside && d < shape.size(); ++d)
      inside = piece.offsets[d] <= shape[d] && piece.sizes[d] <= shape[d] - piece.offsets[d];
    if (!inside) fail(escaped(name) + " has a piece outside itself");
    piece.stored = stored(name, piece.offsets);
    if (piece.stored.shape.shape != piece.sizes)
      fail(escaped(name) + " has a piece of shape " + shape_text(piece.stored.shape) +
           ", the metadata say another");
    bytes += piece.stored.elements.size();
    pieces.push_back(std::move(piece));
  }
  const ElementType type = pieces.front().stored.shape.type;
  const TensorShape whole{name, type, shape};
  if (pieces.size() == 1 && pieces.front().sizes == shape) return {whole, pieces.front().stored.elements};
  std::uint64_t elements = 1;
  for (const std::int64_t size : std::ranges::count(shape, 0) > 0 ? Sizes{0} : shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) || elements > bytes)
      fail(escaped(name) + " has fewer elements in its pieces than it has itself");
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].stored.shape.type != type) fail(escaped(name) + " has pieces of several types");
    for (std::size_t j = 0; j < i; ++j) {
      if (!are_apart(pieces[i], pieces[j])) fail(escaped(name) + " has pieces that overlap");
    }
  }
  if (whole.bytes() != bytes) fail(escaped(name) + " has a gap between its pieces");
  std::uint64_t all = 0;
  for (const auto& [file, mapped] : files_) all += mapped->bytes().size();
  joined_ += bytes;
  if (joined_ > all) fail("has tensors that share their bytes");
  const auto joined = std::make_shared<std::string>(bytes, '\0');
  for (const Piece& piece : pieces) {
    if (!piece.stored.elements.empty()) copy_piece(piece, shape, bytes_of(type), *joined);
  }
  owners_.push_back(joined);
  return {whole, *joined};
}

SavedTensors DcpFolder::open(const std::string& key) {
  if (root_.kind != Kind::Object || root_.text != "torch.distributed.checkpoint.metadata Metadata")
    fail("has a .metadata that is not of torch.distributed.checkpoint");
  const PickleValue& names = member(root_, "state_dict_metadata", Kind::Dict);
  paths_ = root_.find("planner_data");
  read_places();
  const std::vector<std::string> parts = parts_of_key(key);
  SavedTensors all{.path = path_};
  std::map<std::string, std::size_t> nested;  // keys of the first level -> tensors
  std::vector<std::pair<std::string, std::size_t>> chosen;
  for (std::size_t i = 0; i < names.items.size(); i += 2) {
    if (names.items[i]->kind != Kind::Text) fail("has a name that is no text");
    const std::string& name = names.items[i]->text;
    if (!names.items[i + 1]->find("chunks")) continue;  // bytes of any object
    const std::vector<std::string> path = path_of(name);
    if (path.size() > 1) ++nested[path.front()];
    if (const std::string below = chosen_name(name, parts); !below.empty()) chosen.emplace_back(below, i);
  }
  if (chosen.empty() || (parts.empty() && !nested.empty())) {
    std::vector<KeyOffer> offers;
    for (const auto& [first, tensors] : nested) offers.push_back({first, tensors});
    throw no_such_dict(path_,
                       parts.empty() ? (nested.empty() ? "holds no tensors" : "holds dicts in a dict")
                                     : "has no tensors at the key " + escaped(key),
                       offers);
  }
  for (const auto& [below, i] : chosen) {
    SavedTensor one = tensor(names.items[i]->text, *names.items[i + 1]);
    one.shape.name = below;
    if (!all.tensors.emplace(below, std::move(one)).second) fail(escaped(below) + " is there twice");
  }
  all.owners = std::move(owners_);
  return all;
}

}  // namespace

bool is_dcp_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(path) / kMetadata, ignored);
}

Result<SavedTensors> open_dcp_folder(const std::string& path, const std::string& key) {
  const std::string file = (fs::path(path) / kMetadata).string();
  const Result<MappedFile> mapped = MappedFile::open(file);
  if (!mapped) return mapped.problems();
  const Result<Pickle> metadata = Pickle::read(mapped->bytes(), file, OtherClasses::Kept);
  if (!metadata) return metadata.problems();
  try {
    return DcpFolder(path, *metadata).open(key);
  } catch (const Problem& problem) {
    return problem;
  }
}

}  // namespace millrace
