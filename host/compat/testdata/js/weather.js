// componentize-js 0.23.0
export async function getWeather(url) {
  let response;
  try {
    response = await fetch(url + "?city=Reykjav%C3%ADk", { headers: { accept: "application/json" } });
  } catch (e) {
    throw "no answer";
  }
  if (!response.ok) throw "status " + response.status;
  const { main, weather } = await response.json();
  return { city: "Reykjavík", degrees: main.temp, sky: weather.map((w) => w.description) };
}
