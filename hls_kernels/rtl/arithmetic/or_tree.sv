// All bits that are set in any of 16 values: four values a cycle, one level of six-input LUTs.
module or_tree #(
    parameter WIDTH = 32
) (
    input wire clk,
    input wire [WIDTH*16-1:0] values,
    output reg [WIDTH-1:0] out  // two cycles later
);
    reg [WIDTH*4-1:0] fours;

    genvar i;
    generate
        for (i = 0; i < 4; i = i + 1) begin : four
            wire [WIDTH*4-1:0] some = values[WIDTH*4*i+:WIDTH*4];
            always @(posedge clk) begin
                fours[WIDTH*i+:WIDTH] <= some[WIDTH*0+:WIDTH] | some[WIDTH*1+:WIDTH]
                    | some[WIDTH*2+:WIDTH] | some[WIDTH*3+:WIDTH];
            end
        end
    endgenerate

    always @(posedge clk) begin
        out <= fours[WIDTH*0+:WIDTH] | fours[WIDTH*1+:WIDTH] | fours[WIDTH*2+:WIDTH]
            | fours[WIDTH*3+:WIDTH];
    end
endmodule
