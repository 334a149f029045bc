#include "data/volumes/labelled_parts.h"

#include <algorithm>
#include <map>
#include <utility>

namespace millrace {
namespace {

/// Voxels of one label side by side in a row.
struct Stretch {
  std::int64_t begin = 0, end = 0;
  std::uint8_t label = 0;
  std::size_t part = 0;
};
using Row = std::vector<Stretch>;

/// Parts under construction: two that turn out to touch become one.
class Parts {
 public:
  std::size_t add(const VoxelBox& box) {
    parents_.push_back(parents_.size());
    boxes_.push_back(box);
    return parents_.back();
  }
  std::size_t root(std::size_t part) {
    while (parents_[part] != part) part = parents_[part] = parents_[parents_[part]];
    return part;
  }
  /// Joins two parts. The one that began earlier stays.
  void join(std::size_t a, std::size_t b) {
    a = root(a), b = root(b);
    if (a == b) return;
    if (b < a) std::swap(a, b);
    parents_[b] = a;
    for (std::size_t d = 0; d < 3; ++d) {
      boxes_[a].begin[d] = std::min(boxes_[a].begin[d], boxes_[b].begin[d]);
      boxes_[a].end[d] = std::max(boxes_[a].end[d], boxes_[b].end[d]);
    }
  }
  std::size_t size() const { return parents_.size(); }
  const VoxelBox& box(std::size_t part) const { return boxes_[part]; }

 private:
  std::vector<std::size_t> parents_;
  std::vector<VoxelBox> boxes_;
};

/// Joins the stretches of two neighbouring rows that have a label and a column in common.
void join_rows(const Row& one, const Row& other, Parts& parts) {
  for (std::size_t i = 0, j = 0; i < one.size() && j < other.size();) {
    const bool touch = one[i].begin < other[j].end && other[j].begin < one[i].end;
    if (touch && one[i].label == other[j].label) parts.join(one[i].part, other[j].part);
    one[i].end < other[j].end ? ++i : ++j;
  }
}

}  // namespace

std::vector<LabelledParts> labelled_parts(std::span<const std::uint8_t> labels,
                                          const std::array<std::int64_t, 3>& sides, std::size_t most) {
  Parts parts;
  std::vector<std::uint8_t> label_of;
  std::vector<Row> above(static_cast<std::size_t>(sides[1])), plane(above.size());
  const std::uint8_t* at = labels.data();
  for (std::int64_t z = 0; z < sides[0]; ++z, above.swap(plane)) {
    for (std::int64_t y = 0; y < sides[1]; ++y, at += sides[2]) {
      Row& row = plane[static_cast<std::size_t>(y)];
      row.clear();
      for (std::int64_t x = 0; x < sides[2];) {
        x = std::find_if(at + x, at + sides[2], [](std::uint8_t v) { return v != 0; }) - at;
        if (x == sides[2]) break;
        const std::uint8_t label = at[x];
        const std::int64_t end =
            std::find_if(at + x, at + sides[2], [label](std::uint8_t v) { return v != label; }) - at;
        row.push_back({x, end, label, parts.add({{z, y, x}, {z + 1, y + 1, end}})});
        label_of.push_back(label);
        x = end;
      }
      if (y > 0) join_rows(plane[static_cast<std::size_t>(y - 1)], row, parts);
      if (z > 0) join_rows(above[static_cast<std::size_t>(y)], row, parts);
    }
  }
  std::map<std::uint8_t, std::vector<VoxelBox>> found;
  for (std::size_t part = 0; part < parts.size(); ++part)
    if (parts.root(part) == part) found[label_of[part]].push_back(parts.box(part));
  std::vector<LabelledParts> result;
  for (auto& [label, boxes] : found) {
    std::ranges::stable_sort(boxes, std::greater(), &VoxelBox::voxels);
    if (boxes.size() > most) boxes.resize(most);
    result.push_back({label, std::move(boxes)});
  }
  return result;
}

}  // namespace millrace
