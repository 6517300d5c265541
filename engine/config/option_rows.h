// Helpers to write the option table: a row that is filled in one expression, bound to a member of
// RunConfig.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/config/options.h"

namespace zinf::config {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
Value to_value(const T& field) {
  if constexpr (IsOptional<T>::value) {
    return field ? to_value(*field) : Value(AutoValue{});
  } else if constexpr (std::is_enum_v<T>) {
    return ChoiceValue{static_cast<int>(field)};
  } else {
    return Value(std::in_place_type<T>, field);
  }
}

template <typename T>
void from_value(T& field, const Value& value) {
  if constexpr (IsOptional<T>::value) {
    field.reset();
    if (!std::holds_alternative<AutoValue>(value)) from_value(field.emplace(), value);
  } else if constexpr (std::is_enum_v<T>) {
    field = static_cast<T>(std::get<ChoiceValue>(value).index);
  } else {
    field = std::get<T>(value);
  }
}

struct Row : Option {
  Row(std::string key_text, Kind kind_, std::string help_text) {
    key = std::move(key_text);
    kind = kind_;
    help = std::move(help_text);
  }

  template <typename Section, typename T>
  Row&& to(Section RunConfig::*section, T Section::*member) && {
    get = [=](const RunConfig& config) { return to_value(config.*section.*member); };
    set = [=](RunConfig& config, const Value& value) {
      from_value(config.*section.*member, value);
    };
    may_be_unset = IsOptional<T>::value;
    return std::move(*this);
  }
  template <typename T>
  Row&& to(T RunConfig::*member) && {
    get = [=](const RunConfig& config) { return to_value(config.*member); };
    set = [=](RunConfig& config, const Value& value) { from_value(config.*member, value); };
    may_be_unset = IsOptional<T>::value;
    return std::move(*this);
  }

  Row&& least(double bound) && {
    range.least = bound;
    return std::move(*this);
  }
  Row&& above(double bound) && {
    range.least = bound;
    range.above_least = true;
    return std::move(*this);
  }
  Row&& most(double bound) && {
    range.most = bound;
    return std::move(*this);
  }
  Row&& below(double bound) && {
    range.most = bound;
    range.below_most = true;
    return std::move(*this);
  }
  Row&& one_of(std::vector<std::string> names) && {
    choices = std::move(names);
    return std::move(*this);
  }
  Row&& also(std::string other, std::string choice) && {
    synonyms.emplace_back(std::move(other), std::move(choice));
    return std::move(*this);
  }
  Row&& alias(std::string path) && {
    aliases.push_back(std::move(path));
    return std::move(*this);
  }
  Row&& in(std::string unit_text) && {
    unit = std::move(unit_text);
    return std::move(*this);
  }
  Row&& usually(std::string text) && {
    default_text = std::move(text);
    return std::move(*this);
  }
  Row&& when_auto(std::string text) && {
    auto_text = std::move(text);
    return std::move(*this);
  }
  Row&& unset(std::string word) && {
    unset_word = std::move(word);
    return std::move(*this);
  }
};

// The parts of the table, in the order of the reference page.
std::vector<Option> own_options();  // options_own.cc: model .. step
std::vector<Option>
training_options();  // options_training.cc: optimizer .. zero stage, io, checkpoint, export
std::vector<Option>
deepspeed_options();  // options_deepspeed.cc: what has no effect here or is refused

}  // namespace zinf::config
