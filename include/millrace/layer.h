/// \file
/// Layers: the interface, those that come with millrace, and two ways in for a layer of one's own that only
/// has a forward (ForwardLayer, module_layer).
#pragma once

#include "runtime/layers/adversarial_layers.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/layers/forward_layer.h"
#include "runtime/layers/image_layers.h"
#include "runtime/layers/layer.h"
#include "runtime/layers/module_layer.h"
#include "runtime/layers/point_layers.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/repeated_layer.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/layers/transposed_convolution.h"
