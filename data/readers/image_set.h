// Images with labels, whatever holds them: what the readers of folders, tables, packed files and archives
// hand to the one data set that decodes, augments and normalises.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/files/left_out.h"
#include "data/loading/dataset.h"
#include "data/readers/jpeg.h"
#include "runtime/base/result.h"

namespace millrace {

/// The problems of one listing: one for each damaged row would fill the screen.
inline constexpr std::size_t kMostListed = 10;

struct ImageItem {
  std::string name;  ///< the file's path, or the file and its record: "train-0.tar:0017.jpg"
  int target = 0;
  std::int64_t record = 0;  ///< the reader's own number for it; a file needs none
};

/// Reads one image, at least the pixels that `region` needs. Returns false if it is damaged; then `error`
/// has the reason. Thread-safe.
using ReadImage =
    std::function<bool(const ImageItem& item, RgbImage& image, std::string& error, const RegionOf& region)>;

/// Reads and decodes the file that the item is named after.
bool read_image_file(const ImageItem& item, RgbImage& image, std::string& error, const RegionOf& region);

/// The images of one split.
struct ImageSet {
  std::string source;  ///< the folder or file that holds them; names of items may begin with it
  std::vector<ImageItem> items;
  LeftOut left_out;
  std::vector<std::string> notes;
  ReadImage read = read_image_file;
  std::string pixels;  ///< a hash of the pixels where they are in memory; part of the fingerprint
};

/// A source of labelled images, before a split is read.
struct ImageSource {
  std::string place;                   ///< the source of the classes, for messages
  std::int64_t num_classes = 0;        ///< of the training set
  bool has_test = false;               ///< a test split of its own
  bool evaluates_on_training = false;  ///< without a test split, evaluation takes the training set
  /// Whether training augments by default. Digits must not be mirrored.
  bool augments = true;
  std::function<Result<ImageSet>(DataSplit split)> open;
};

/// Opens a folder of class folders. Problems: unreadable, no class folders.
Result<ImageSource> open_image_folder(const std::string& path);
/// Opens TRAIN.csv or TRAIN.csv,TEST.csv: tables with a row for each image, its file and its label.
Result<ImageSource> open_image_table(const std::string& paths);

/// Opens TRAIN or TRAIN,TEST, each a folder of .tar archives, one archive or PREFIX{000..012}.tar: a sample
/// is KEY.jpg and KEY.cls, one behind the other (WebDataset). A key ends at the first dot of a file's name,
/// so KEY.seg.png is another file of the sample. All headers are read at once, no images. Problems: two
/// images or two classes of one key, one without the other, and others of docs/data.md.
Result<ImageSource> open_image_tars(const std::string& text);
/// Opens a folder with CIFAR's binary version (data_batch_1.bin or train.bin) or MNIST's IDX files, which may
/// be packed by gzip. `classes` of the model chooses among the labels of CIFAR-100: 20 are the coarse ones.
/// Returns nothing if the folder has neither.
std::optional<Result<ImageSource>> open_packed_images(const std::string& path, std::int64_t classes);

/// Divides a training set into one to train on and one to evaluate on, class by class: `share` of each class,
/// rounded, goes to the test. An item's lot depends on the seed and its name relative to the source alone.
/// So it is the same on every rank, and files that are added later move only few others.
void hold_out(ImageSet& set, double share, std::uint64_t seed, DataSplit kept);

/// Returns a text such as "a, b, c, d, e and 7 more".
std::string some_of(const std::vector<std::string>& names);

/// Returns an item's name relative to its source.
std::string relative_name(const ImageSet& set, const ImageItem& item);

/// Makes the data set of labelled images that options.path names: a folder of class folders, a table, or
/// others of docs/data.md. Returns null if there is no such split.
Result<std::shared_ptr<const Dataset>> make_labelled_images(const DatasetOptions& options);

/// Makes a data set for models that read square images alone, [3, size, size]. It takes every image below
/// PATH/train and PATH/{test,val}, or below PATH for both splits, in whatever folders, in the order of their
/// paths. The shorter side becomes `size`, the centre is cut out, values are in [-1, 1]; nothing is random.
/// Returns null if there is no test/ or val/ next to train/.
Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options);

/// Makes a data set of image files without labels, in the order of `paths`; a folder stands for all images in
/// it and below it, in the order of their paths. `classifier`: prepared as the test images of a classifier
/// are, else as make_image_tree() does. A damaged file is a DataError of get(). Problem: a folder without
/// images.
Result<std::shared_ptr<const Dataset>> make_image_files(const std::vector<std::string>& paths, int size,
                                                        bool classifier);

/// Returns the names of the classes, class 0 first: those of a folder of class folders, or the lines of a
/// file. Problem: neither, a folder without classes, an empty line.
Result<std::vector<std::string>> read_class_names(const std::string& path);

}  // namespace millrace
