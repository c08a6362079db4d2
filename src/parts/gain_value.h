#pragma once
// The state of an AdaScale as a JSON text: running means and effective steps.

#include <fairshard/scale/gain_meter.h>

#include <string>

namespace fairshard {

std::string gain_to_json(const scale::GainMeter& meter);
/// `key` names the text in errors.
void gain_from_json(scale::GainMeter& meter, const std::string& text, const std::string& key);

}  // namespace fairshard
