// Reads the list of `--augment`: changes of training images, drawn at random. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// The names are torchvision's transforms'.
enum class Augmentation {
  RandomResizedCrop,     ///< numbers: least and most share of the area
  RandomCrop,            ///< numbers: pixels of black padding on each side
  RandomHorizontalFlip,  ///< numbers: probability
  ColorJitter,           ///< numbers: brightness, contrast, saturation, hue
  RandAugment,           ///< numbers: operations, magnitude of 0 to 30
  Mixup,                 ///< numbers: alpha of the Beta distribution that shares are drawn from
};

struct AugmentStep {
  Augmentation kind;
  std::vector<double> numbers;  ///< all that the kind has, with defaults where none were given
};

/// Reads "NAME[:NUMBER...],NAME...", for example "random-crop:4,random-horizontal-flip"; "none" is the empty
/// list. A Problem names an unknown step, a number out of range, or a step that comes twice.
Result<std::vector<AugmentStep>> augment_steps_from(std::string_view text);

/// Returns the step of this kind; null: it is not in the list.
const AugmentStep* find_step(const std::vector<AugmentStep>& steps, Augmentation kind);

/// Returns the steps with the forms and defaults of their numbers, for the help.
std::string augment_forms();

}  // namespace millrace
