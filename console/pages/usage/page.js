// Draws the curve above the table, and saves the table as a file.
const where = document.getElementById("chart");
const series = JSON.parse(document.getElementById("series").textContent);
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function draw() {
  where.replaceChildren();
  if (!series.length) return;
  const axis = { stroke: token("--dim"), grid: { stroke: token("--line"), width: 1 }, ticks: { stroke: token("--line") } };
  const line = (label, colour, scale) => ({ label, stroke: token(colour), width: 2, scale, points: { show: series[0].length < 40 } });
  new uPlot({
    width: where.clientWidth, height: 220, cursor: { drag: { x: true, y: false } },
    axes: [axis, { ...axis, scale: "n", label: "requests" }, { ...axis, scale: "tokens", side: 1, label: "tokens", size: 70, grid: { show: false } }],
    scales: { x: { range: [Number(where.dataset.from), Number(where.dataset.to)] }, n: { range: (_, __, most) => [0, Math.max(1, most)] }, tokens: { range: (_, __, most) => [0, Math.max(1, most)] } },
    series: [{}, line("requests", "--accent", "n"), line("tokens in", "--load", "tokens"), line("tokens out", "--run", "tokens")],
  }, series, where);
}

draw();
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.getElementById("csv").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([document.getElementById("csv-text").value], { type: "text/csv" }));
  link.download = "usage.csv";
  link.click();
  URL.revokeObjectURL(link.href);
});
