"use strict";

const tensors = JSON.parse(document.getElementById("tensors").textContent);
const hover = document.getElementById("hover");
const search = document.getElementById("search");
const found = document.getElementById("found");
const boxes = [...document.querySelectorAll("rect.t")];
const words = tensors.map((tensor) => `\n${Object.values(tensor).join("\n")}\n`.toLowerCase());
let shown = null;

function show(box) {
  if (shown) shown.classList.remove("at");
  shown = box;
  hover.hidden = !box;
  if (!box) return;
  box.classList.add("at");
  const list = document.createElement("dl");
  for (const [key, value] of Object.entries(tensors[box.dataset.t])) {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = key;
    detail.textContent = value;
    list.append(term, detail);
  }
  hover.replaceChildren(list);
}

function place(x, y) {
  const { width, height } = hover.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
  hover.style.left = `${Math.max(left, 4)}px`;
  hover.style.top = `${Math.max(top, 4)}px`;
}

function find() {
  // In quotes, a value must be all of it: "add_1" doesn't find add_12.
  const wanted = search.value.trim().toLowerCase().replace(/^"(.+)"$/, "\n$1\n");
  let count = 0;
  for (const box of boxes) {
    const hit = wanted !== "" && words[box.dataset.t].includes(wanted);
    box.classList.toggle("hit", hit);
    count += hit;
  }
  document.body.classList.toggle("searching", wanted !== "");
  found.textContent = wanted === "" ? "" : `${count} of ${boxes.length} tensors`;
}

for (const plot of document.querySelectorAll("svg.plot")) {
  const own = [...plot.querySelectorAll("rect.t")];
  plot.addEventListener("pointermove", (event) => {
    const box = event.target.closest("rect.t");
    if (box !== shown) show(box);
    if (box) place(event.clientX, event.clientY);
  });
  plot.addEventListener("pointerleave", () => show(null));
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") show(null);
    if (!step || own.length === 0) return;
    event.preventDefault();
    const from = own.indexOf(shown);
    const next = from < 0 ? 0 : (from + step + own.length) % own.length;
    show(own[next]);
    const { right, top } = own[next].getBoundingClientRect();
    place(right, top);
  });
}

search.addEventListener("input", find);
document.addEventListener("click", (event) => {
  if (!event.target.matches(".find")) return;
  search.value = `"${event.target.textContent}"`;
  find();
  document.querySelector(".hit")?.closest("svg").scrollIntoView({ block: "nearest" });
});
