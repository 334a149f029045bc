#include "data/readers/image_dataset.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>

#include <ATen/ops/full.h>

#include "data/readers/augment_image.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {

constexpr double kMaxDamaged = 0.01;  // share of the data set; more damaged images are an error
constexpr int kDamagedAlwaysAllowed = 10;
constexpr std::size_t kMostKept = 16 << 20;  // bytes of the buffer that a thread keeps

class ImageDataset final : public Dataset {
 public:
  ImageDataset(ImageSet set, const Preparation& preparation)
      : set_(std::move(set)), preparation_(preparation), oddity_(set_.items.size()) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(set_.items.size()); }
  int num_classes() const override { return preparation_.num_classes; }
  std::string fingerprint() const override {
    Xxh3 listing;
    for (const ImageItem& item : set_.items) {
      listing.add(relative_name(set_, item));
      listing.add("\n");
      listing.add(std::to_string(item.target));
      listing.add("\n");
    }
    return contents() + ", listing " + listing.value().hex().substr(0, 16) +
           (set_.pixels.empty() ? "" : ", pixels " + set_.pixels);
  }
  std::string describe() const override { return set_.source + ", " + contents(); }
  std::vector<std::string> notes() const override {
    std::vector<std::string> notes = set_.notes;
    std::ranges::copy(set_.left_out.notes(), std::back_inserter(notes));
    return notes;
  }
  std::int64_t left_out() const override { return set_.left_out.count(); }
  std::string name_of(std::int64_t index) const override { return item(index).name; }
  std::map<std::int64_t, unsigned> odd_samples() const override {
    std::map<std::int64_t, unsigned> odd;
    for (std::size_t i = 0; i < oddity_.size(); ++i) {
      if (const unsigned bits = oddity_[i].load())
        odd.emplace_hint(odd.end(), static_cast<std::int64_t>(i), bits);
    }
    return odd;
  }

  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    Sample sample(wanted.size());
    const Mix mix = mix_of(index, augment_seed);
    if (wanted[0]) {
      sample[0].tensor = image_of(index, augment_seed);
      if (mix.share < 1) {
        const at::Tensor other = image_of(mix.partner, derive_seed(augment_seed, "mixup partner"));
        sample[0].tensor.mul_(mix.share).add_(other, 1 - mix.share);
      }
    }
    if (preparation_.num_classes > 0) sample[1].number = item(index).target;
    if (preparation_.mixes) {
      sample[2].number = item(mix.partner).target;
      sample[3].tensor = at::full({}, mix.share, at::kFloat);
    }
    return sample;
  }

 private:
  /// A sample is mixed with a partner of any class: the share is its own part.
  struct Mix {
    std::int64_t partner = 0;
    float share = 1;
  };
  /// Pure, so that the ranks that read images and those that read labels agree.
  Mix mix_of(std::int64_t index, std::uint64_t augment_seed) const {
    const AugmentStep* step = preparation_.train && preparation_.augment
                                  ? find_step(*preparation_.augment, Augmentation::Mixup)
                                  : nullptr;
    if (!step) return {index, 1};
    RandomStream random(derive_seed(augment_seed, "mixup"));
    const auto partner = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(size())));
    return {partner, static_cast<float>(draw_beta(step->numbers[0], random))};
  }

  at::Tensor image_of(std::int64_t index, std::uint64_t augment_seed) const {
    const int target = item(index).target;
    // The next whole image of its class replaces a damaged one, or the next of the set if the class has none.
    // The label stays the image's own in any case. The rank that computes the loss does not decode images,
    // and must have the same label.
    // The buffer of a thread is used again: fresh memory of this size costs a tenth of decoding.
    thread_local RgbImage image;
    if (image.pixels.capacity() > kMostKept) image = {};
    const RegionOf region = [&](int width, int height) {
      return needed_pixels(width, height, preparation_, augment_seed);
    };
    for (const bool same_class : {true, false}) {
      for (std::int64_t step = 0; step < size(); ++step) {
        const std::int64_t other = (index + step) % size();
        if ((item(other).target == target) == same_class && decode(other, image, region))
          return transform(image, preparation_, augment_seed);
      }
    }
    throw DataError(set_.source + ": not one image could be decoded");
  }

  std::string contents() const {
    return std::to_string(size()) + " images" +
           (preparation_.num_classes > 0 ? ", " + std::to_string(num_classes()) + " classes" : "");
  }
  const ImageItem& item(std::int64_t index) const { return set_.items[index]; }

  bool decode(std::int64_t index, RgbImage& image, const RegionOf& region) const {
    std::string error;
    if (set_.read(item(index), image, error, region)) {
      if (image.kind == JpegKind::Grey) note(index, kGreySample);
      if (image.kind == JpegKind::Cmyk) note(index, kCmykSample);
      return true;
    }
    if (preparation_.damaged == DamagedImages::Fail)
      throw DataError(item(index).name + ": " + error, "repair it or leave it out");
    if (note(index, kDamagedSample)) report_damage(item(index).name, error);
    return false;
  }

  /// Sets a bit of OddSample. Returns true the first time.
  bool note(std::int64_t index, unsigned bit) const {
    return !(oddity_[index].fetch_or(static_cast<std::uint8_t>(bit)) & bit);
  }

  void report_damage(const std::string& name, const std::string& error) const {
    const std::int64_t damaged = ++damaged_;
    log_warning("damaged image replaced: " + name + ": " + error);
    if (damaged > kDamagedAlwaysAllowed && double(damaged) > kMaxDamaged * double(size())) {
      throw DataError(name + ": " + error + " (" + std::to_string(damaged) + " of " + std::to_string(size()) +
                          " images are damaged, more than 1 %)",
                      "repair or remove the files named above");
    }
  }

  ImageSet set_;
  Preparation preparation_;
  mutable std::vector<std::atomic<std::uint8_t>> oddity_;  // indexed by sample: bits of OddSample
  mutable std::atomic<std::int64_t> damaged_{0};
};

}  // namespace

std::string relative_name(const ImageSet& set, const ImageItem& item) {
  return std::filesystem::path(item.name).lexically_relative(set.source).generic_string();
}

std::shared_ptr<const Dataset> make_image_dataset(ImageSet set, const Preparation& preparation) {
  return std::make_shared<ImageDataset>(std::move(set), preparation);
}

}  // namespace millrace
