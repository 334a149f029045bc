// Weights of samples in the loss: `--class-weights`, a file of numbers or numbers from the training set's
// labels, and labels that an exported model ignores.
#pragma once

#include <string>
#include <vector>

#include "driver/flags/compute_specs.h"
#include "driver/worker/program.h"
#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// Reads a weight for each class: one number a line in the order of the classes, or lines `class,weight` with
/// the number of the class, in any order and perhaps below a header. Blank lines and those that begin with #
/// are ignored. `where` is for messages. Problems: another form, a class twice or missing.
Result<std::vector<double>> parse_class_weights(const std::string& text, const std::string& where);

/// Returns N / (K * count) for each of K classes. Problem: a class that no label has.
Result<std::vector<double>> balanced_weights(const std::vector<std::int64_t>& labels, std::int64_t classes);

/// Gives the heads of `model` the weights that `flags` name, if any. It reads the file, or the labels of the
/// training set.
Status apply_class_weights(LayeredModel& model, const TrainFlags& flags, const Additions& own);

/// Makes microbatches of `model` weigh as their labels that count, if its loss ignores some labels and the
/// samples of a split differ in how many count. So the loss does not depend on how a step is cut. It reads
/// the labels of both splits.
void apply_ignored_labels(LayeredModel& model, const TrainFlags& flags, const Additions& own);

/// Returns a note for the user if `set` has labels that `model` ignores, and the graph does not define how
/// many count. `data` is the value of --data. Empty: no note.
std::string note_on_ignored_labels(const LayeredModel& model, const std::string& data, const Additions& own,
                                   const Dataset& set);

}  // namespace millrace
