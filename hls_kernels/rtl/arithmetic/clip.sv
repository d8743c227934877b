// Into +-limit, for limit >= 0, and whether that changed the value.
module clip (
    input wire clk,
    input wire signed [31:0] value,
    input wire signed [31:0] limit,
    output reg signed [31:0] out,  // one cycle later
    output reg changed
);
    wire above = value > limit;
    wire signed [32:0] over_least = 33'(value) + 33'(limit);
    wire below = over_least[32];
    wire unused = |over_least[31:0];

    always @(posedge clk) begin
        out <= above ? limit : below ? -limit : value;
        changed <= above | below;
    end
endmodule
