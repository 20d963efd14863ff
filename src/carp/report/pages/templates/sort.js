// Sorts the cards of a list by one of their values.
"use strict";
for (const select of document.querySelectorAll("[data-sort]")) {
  select.addEventListener("change", () => {
    const list = document.getElementById(select.dataset.sort), descending = select.value.startsWith("-");
    const key = select.value.replace("-", "");
    const value = (card) => (key === "title" ? card.dataset.title : Number(card.dataset[key]));
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : Number(a.dataset.number) - Number(b.dataset.number));
    list.append(...[...list.children].sort((a, b) => (descending ? order(b, a) : order(a, b))));
  });
}
